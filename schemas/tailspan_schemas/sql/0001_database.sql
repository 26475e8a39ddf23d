create database if not exists tailspan
